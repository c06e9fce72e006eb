"""Models over HTTP: the interfaces, the engine behind them, and the page."""
