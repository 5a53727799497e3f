"""What every part that works with torch shares: nested states, random numbers, whose line it is."""
