"""The same verbs on Apache Spark. Nothing outside this package imports pyspark."""
