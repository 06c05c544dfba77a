"""The routes of Zeus's batch size optimizer: its released clients work with our history."""
