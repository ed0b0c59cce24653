//! Buckets from outside: alone, against a reference model, and as groups of a data bucket and copies.

mod cluster;
mod conformance;
mod copies;
mod copies_min;
mod model;
mod regressions;
mod weather;
