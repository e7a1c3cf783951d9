"""From a device to a kernel table: what is measured, how it is timed, and what a measurement leaves behind."""
