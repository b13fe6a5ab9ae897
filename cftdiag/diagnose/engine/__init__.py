"""From events to findings: the parts that know no single cause."""
