"""Records of operations, one file per family; `ir.table` collects them."""
