"""What every pass uses: options, pins, errors, reasons to stop, units as text, the store."""
