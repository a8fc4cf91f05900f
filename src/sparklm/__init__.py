"""sparklm: train a decoder language model from raw text, on one machine or an Apache Spark cluster."""

__version__ = "0.1.0"
