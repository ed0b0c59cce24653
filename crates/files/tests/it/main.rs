//! Sources against servers: real ones, and some that lie or forget.

mod hiccups;
mod hostile;
mod lists;
mod mapped;
mod metadata;
mod portal;
mod remembered;
mod stores;
mod tls;
mod unmounted;
