"""Every chart of a report, one file a subject: from plain data to SVG. Knows matplotlib, and no page."""
