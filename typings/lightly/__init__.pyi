"""Not looked into: what it imports is far larger than what a test asks of it."""
