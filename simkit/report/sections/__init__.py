"""What a report says, a module a subject: each makes its tables and sentences of plain data. Draws nothing."""
