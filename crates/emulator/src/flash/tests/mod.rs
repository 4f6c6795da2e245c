//! Tests of the translation layer: against a model, with power failures, with deliberate bugs.

mod amplification;
mod lifetime;
mod model;
mod mutants;
mod power;
mod rig;
mod speed;
