//! Buckets of whole groups, joined by a queue of messages.

mod cluster;
mod conformance;
mod copies;
mod flushes;
mod holes;
mod image_model;
mod images;
mod images_rebuilt;
mod machine;
mod recovery;
mod volumes;
mod weather;
