"""Define commands by subject: one's own table, what something costs, and audits. `sottovoce.cli` registers them."""
