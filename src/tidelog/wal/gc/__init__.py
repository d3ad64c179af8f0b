"""Keep a log in bounds: cursors and pins hold, the collector erases."""
