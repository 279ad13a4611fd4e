"""The Agent2Agent protocol, version 1.0, JSON-RPC binding: a message to a principal becomes a handoff."""
