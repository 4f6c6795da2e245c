//! Tests of the translation layer.
