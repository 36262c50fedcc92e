"""What the commands print: tables, messages and progress."""
