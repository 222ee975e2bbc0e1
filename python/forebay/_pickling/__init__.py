"""What cannot be sent to another process, and why."""
