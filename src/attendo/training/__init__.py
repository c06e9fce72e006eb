"""Training: losses, schedules, the one loop, and the state that a checkpoint holds."""
