"""Files written whole or not at all, checked readers, tables and pages."""
