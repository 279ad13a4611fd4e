"""What an agent reads before it calls: /llms.txt and the guides that it leads to."""
