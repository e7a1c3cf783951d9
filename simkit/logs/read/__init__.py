"""Any log becomes columns: compression, CSV, JSON and parquet, cells, times and the layout of columns."""
