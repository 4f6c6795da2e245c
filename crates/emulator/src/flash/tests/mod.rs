//! Tests of the translation layer: against a model, with power failures, with deliberate bugs.

mod amplification;
mod full_host;
mod hollow;
mod lifetime;
mod model;
mod mutants;
mod power;
mod rig;
mod speed;
