"""The causes, one file a family; their texts and runnable examples lie beside them."""
