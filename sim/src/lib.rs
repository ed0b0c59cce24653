//! The simulated cluster: all members of one group or several, their directory, network, clocks and clients, in one
//! thread from one seed.
//!
//! **Promises.** The same seed gives the same run, down to a hash over all events. Every run does a
//! minimum of operations and faults ([`run::OPERATIONS_MIN`], [`run::FAULTS_MIN`]); a batch in which
//! some fault never struck at some step of the protocol fails ([`cover::Coverage::blind_spots`]).
//! Every planted bug of the specification that the shapes here can show is found within a bounded
//! number of seeds.
//!
//! **Path of the data.** [`world`] pops an event from the [`event`] queue; a packet goes to a [`node`]
//! (the real machine of `staves-group` with a small service on it), to the [`directory`] (the real
//! `ClusterMap` and lease book) or to a [`client`], which for a service drives the real client's turn
//! ([`router`]). [`fault`] breaks things. After each step [`check`]
//! looks at the invariants; clients' operations go to the [`history`].
//!
//! **Worlds.** Of every third seed a world has two or three groups ([`group`]) of different services and schemes, which share
//! the nodes with their memory, the network, the faults and the stops; all others have one. By seed, clients use registers of the members themselves or a service of the table
//! [`load::SERVICES`]: keys and values (m = 1), a region of memory (it grows, is deleted and made anew), or
//! counters. Some worlds with m > 1 are short of memory, and their data buckets change their minds about how
//! much they want ([`room`]).
//!
//! Beside the clusters stand two small worlds of their own: voters under load ([`elections`]), and the placement of a files
//! pool ([`placement`]).
//!
//! **Layout.** Start with `run`, then `world`; `check` and `history` say what correct means.

pub mod check;
pub mod client;
pub mod clients;
pub mod cover;
pub mod directory;
pub mod directory_state;
pub mod elections;
pub mod event;
pub mod fault;
pub mod ghost;
pub mod group;
pub mod history;
pub mod keep;
pub mod leaders;
pub mod load;
pub mod loss;
pub mod node;
pub mod pinger;
pub mod placement;
pub mod region;
pub mod rest;
pub mod rng;
pub mod room;
pub mod router;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod script;
pub mod served;
mod shadow;
pub mod stop_state;
pub mod stops;
pub mod waiting;
pub mod watch;
pub mod world;
