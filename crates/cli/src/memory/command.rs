//! The command line of `staves memory`.

use clap::Subcommand;
use staves_node::config::Size;

#[derive(Subcommand, Debug)]
pub enum Memory {
    /// Make a region: flat bytes that read as zeroes, and take up memory only where they are written
    Create {
        /// Its name
        name: String,
        /// Its length
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// The pool
        #[arg(long, default_value = "memory")]
        pool: String,
        /// Bytes of each data bucket of its groups, a power of two from 64MiB to 1GiB [default: as suits its length]
        #[arg(long, value_name = "SIZE")]
        bucket: Option<Size>,
    },
    /// All regions
    List,
    /// One region, and where it lies
    Show {
        /// Its name
        name: String,
    },
    /// Let a region end further on, while it is in use
    Grow {
        /// Its name
        name: String,
        /// Its new length
        #[arg(long, value_name = "SIZE")]
        size: Size,
    },
    /// Delete a region with all that it holds
    Delete {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Print bytes of a region as they are
    Read {
        /// Its name
        name: String,
        /// The first byte
        #[arg(long, value_name = "SIZE", default_value = "0B")]
        offset: Size,
        /// Bytes to read; without it, up to the region's end
        #[arg(long, value_name = "SIZE")]
        length: Option<Size>,
    },
    /// Write standard input into a region
    Write {
        /// Its name
        name: String,
        /// The offset of the first byte
        #[arg(long, value_name = "SIZE", default_value = "0B")]
        offset: Size,
        /// Without parity until all is written, which is faster: then parity is made in one pass. What a node
        /// that fails meanwhile holds of what was loaded is lost. Bytes beside it keep their parity: what shares groups with
        /// them is logged
        #[arg(long)]
        load: bool,
    },
    /// Make the parity of a region whose load was broken off
    Protect {
        /// Its name
        name: String,
    },
}
