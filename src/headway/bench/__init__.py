"""What things cost: the scheduler, an engine without a server, any server under a load."""
