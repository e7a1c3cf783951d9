"""How a report is shown: as a page, as Markdown, on a terminal."""
