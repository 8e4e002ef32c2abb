"""What watches over a server: metrics, logs and traces of what the engine and the clients do."""
