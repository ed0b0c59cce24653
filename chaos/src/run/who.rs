//! The nodes of steps.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::seq::IndexedRandom;
use serde_json::Value;

use super::{HEALING, Runner};
use crate::lab::HUB;
use crate::nodes::status;
use crate::scenario::Who;

impl Runner<'_> {
    /// The nodes of a step.
    pub(super) fn resolve(&mut self, who: &Who) -> anyhow::Result<Vec<usize>> {
        self.resolve_but(who, &[])
    }

    /// The nodes of a step; those that are chosen are none of `but`, if there are others.
    pub(super) fn resolve_but(&mut self, who: &Who, but: &[usize]) -> anyhow::Result<Vec<usize>> {
        let mut running: Vec<usize> = self.nodes.running();
        if running.iter().any(|at| !but.contains(at)) {
            running.retain(|at| !but.contains(at));
        }
        let nodes = match who {
            Who::Nodes(nodes) => nodes.clone(),
            Who::Random(n) => running
                .choose_multiple(&mut self.rng, *n)
                .copied()
                .collect(),
            Who::Every => (0..self.nodes.count()).collect(),
            Who::Last => self.last.clone(),
            Who::Leader => vec![self.leader()?],
            Who::Lowest => vec![self.lowest()?],
            // It may have ended meanwhile.
            Who::VolumeDoor => match self.shared.volume.door() {
                at if running.contains(&at) => vec![at],
                _ => running.choose(&mut self.rng).copied().into_iter().collect(),
            },
            Who::LogSequencer => vec![self.log_nodes()?.0],
            Who::LogUnit => vec![self.log_nodes()?.1],
            Who::LogBoth => {
                let (sequencer, unit) = self.log_nodes()?;
                let mut both = vec![sequencer, unit];
                both.dedup();
                both
            }
            Who::Followers(n) => {
                let leader = self.leader()?;
                running.retain(|at| *at != leader);
                running
                    .choose_multiple(&mut self.rng, *n)
                    .copied()
                    .collect()
            }
            Who::Clients => vec![HUB],
        };
        let known = |at: usize| at < self.nodes.count() || at == HUB;
        if let Some(nobody) = nodes.iter().find(|at| !known(**at)) {
            bail!("there is no n{}", nobody + 1);
        }
        if nodes.is_empty() {
            bail!("nobody fits");
        }
        self.last = nodes.clone();
        Ok(nodes)
    }

    /// The directory's leader, as soon as it is known.
    fn leader(&self) -> anyhow::Result<usize> {
        let leads = |nodes: &[Value]| {
            let leader = nodes.iter().find(|node| node["leads_directory"] == true);
            Some(leader?["native"].as_str()?.to_owned())
        };
        let leader = self.running_node(leads);
        leader.with_context(|| format!("nobody led the directory for {HEALING:?}"))
    }

    /// The node that is up with the least id, as soon as that is one that runs.
    fn lowest(&self) -> anyhow::Result<usize> {
        let lowest = |nodes: &[Value]| {
            let up = nodes.iter().filter(|node| node["up"] == true);
            let lowest = up.min_by_key(|node| node["id"].as_u64());
            Some(lowest?["native"].as_str()?.to_owned())
        };
        let lowest = self.running_node(lowest);
        lowest.with_context(|| format!("no node was up for {HEALING:?}"))
    }

    /// A running node, chosen by its address in some node's status, as soon as there is one.
    fn running_node(&self, choose: impl Fn(&[Value]) -> Option<String>) -> Option<usize> {
        let until = Instant::now() + HEALING;
        while Instant::now() < until {
            for at in self.nodes.running() {
                let Ok(said) = status(&self.lab.address(at)) else {
                    continue;
                };
                let chosen = said["nodes"].as_array().and_then(|nodes| choose(nodes));
                let place = |native: String| {
                    self.nodes
                        .running()
                        .into_iter()
                        .find(|at| native == format!("{}:1600", self.lab.address(*at)))
                };
                if let Some(at) = chosen.and_then(place) {
                    return Some(at);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}
