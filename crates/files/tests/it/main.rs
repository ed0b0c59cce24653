//! Sources against servers: real ones, and one that lies.

mod hostile;
mod lists;
mod servers;
mod stores;
mod tls;
