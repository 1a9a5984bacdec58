"""What people see: the only statements that pages, commands, exports, alerts and the watch read by. Nothing here writes."""
