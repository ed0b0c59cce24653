//! A node's seat for the sequencer of one log: at most one machine for each term (rule 1).

use staves_model::Time;

use super::{Sequencer, SequencerEffects, SequencerEvent, SequencerLimits};
use crate::message::{SequencerAnswer, SequencerReply};
use crate::types::{LogRecord, SequencerId, Term};

/// The seat of one log's sequencers in one life of a node. It begins empty: a node that restarts knows no term, and is given a new one.
#[derive(Debug)]
pub struct SequencerSeat {
    id: SequencerId,
    /// The highest term that a machine was made for, or that a reply named.
    highest: Term,
    machine: Option<Sequencer>,
}

impl SequencerSeat {
    /// An empty seat in one life of a node.
    pub fn new(id: SequencerId) -> SequencerSeat {
        SequencerSeat {
            id,
            highest: Term::default(),
            machine: None,
        }
    }

    /// This life of the node.
    pub fn id(&self) -> SequencerId {
        self.id
    }

    /// The machine of the highest term, if it is not deposed.
    pub fn machine(&self) -> Option<&Sequencer> {
        self.machine
            .as_ref()
            .filter(|machine| !machine.is_deposed())
    }

    /// Begins the term that a record commits to this life of the node. An older term, or one that was begun before, changes nothing.
    pub fn lead(
        &mut self,
        now: Time,
        record: LogRecord,
        limits: SequencerLimits,
        out: &mut SequencerEffects,
    ) {
        let Some(lead) = record.lead.as_ref().filter(|lead| lead.term > self.highest) else {
            return;
        };
        let term = lead.term;
        if let Some(mut before) = self.machine.take() {
            before.depose_below(term, out);
        }
        self.highest = term;
        self.machine = Sequencer::new(now, self.id, record, limits, out);
    }

    /// Takes one event. Without a machine, requests are answered with the highest term that is known here.
    pub fn step(&mut self, now: Time, event: SequencerEvent, out: &mut SequencerEffects) {
        match (&mut self.machine, event) {
            (Some(machine), event) => machine.step(now, event, out),
            (None, SequencerEvent::Request(to, request)) => {
                let answer = SequencerAnswer::NotSequencer { term: self.highest };
                let log = request.log;
                out.replies.push((to, SequencerReply { log, answer }));
            }
            (None, _) => {}
        }
    }
}
