"""Studies beside other studies, and in the formats of other tools: compare, gate, export, import, query."""
