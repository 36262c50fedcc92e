"""The generated pages: values computed from raw results, filled into the Markdown of benchmarks/templates."""
