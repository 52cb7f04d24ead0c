"""From records to statistics, tables, plots and reports; no model and no torch."""
