"""Many runs that answer one question: processes, checkpoints, comparison, sweep and the doctor's proof."""
