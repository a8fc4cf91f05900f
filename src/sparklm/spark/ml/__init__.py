"""sparklm as Spark ML has it: an estimator, its model and an evaluator, for pipelines and for grids."""
