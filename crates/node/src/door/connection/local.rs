//! Commands that no bucket answers: those of the connection and of the node, and DBSIZE.

use std::pin::Pin;

use staves_net::OWN_BYTES;
use staves_resp::{After, Args, Command, CommandName, Join, Output, PartialReply, Redirect};
use staves_wire::ErrorCode;
use staves_wire::hello::Role;

use super::Executor;
use crate::gate::{CostlyTurn, GateRefusal};

/// The turn of a connection's next command.
pub(super) enum DoorTurn {
    /// The command needs none.
    None,
    Awaited(Pin<Box<dyn Future<Output = Result<CostlyTurn, GateRefusal>> + Send>>),
    Here(CostlyTurn),
    Refused(GateRefusal),
}

impl DoorTurn {
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, DoorTurn::Awaited(_))
    }

    /// Waits for a turn that is awaited.
    pub(super) async fn comes(&mut self) {
        if let DoorTurn::Awaited(turn) = self {
            *self = match turn.await {
                Ok(turn) => DoorTurn::Here(turn),
                Err(refusal) => DoorTurn::Refused(refusal),
            };
        }
    }

    /// The turn of the command that is executed now, which has none if it needs none.
    fn take(&mut self) -> Result<Option<CostlyTurn>, GateRefusal> {
        match std::mem::replace(self, DoorTurn::None) {
            DoorTurn::Here(turn) => Ok(Some(turn)),
            DoorTurn::Refused(refusal) => Err(refusal),
            DoorTurn::None | DoorTurn::Awaited(_) => Ok(None),
        }
    }
}

/// True for commands whose answers may be longer than what a connection may hold without a question.
fn may_be_long(name: CommandName, args: Args<'_>) -> bool {
    match name {
        CommandName::Info
        | CommandName::Command
        | CommandName::Client
        | CommandName::Config
        | CommandName::Cluster => true,
        _ => args.iter_from(1).any(|arg| arg.len() > OWN_BYTES),
    }
}

impl Executor {
    /// True if this command is costly and the connection has no turn for it: it is looked at again with one.
    pub(super) fn waits_for_turn(&mut self, command: &Command<'_>) -> bool {
        if matches!(self.turn, DoorTurn::None) && !self.transaction.is_open && command.is_costly() {
            let wait_max = self.running.host.options().request;
            let turn = self.running.gates.of(Role::Client).enter(wait_max);
            self.turn = DoorTurn::Awaited(Box::pin(turn));
        }
        self.turn.is_awaited()
    }

    fn refused_turn(&mut self, refusal: GateRefusal) {
        let out = self.places.tail(&mut self.output);
        out.failure(ErrorCode::Busy, &refusal.to_string());
    }

    /// Answers a command of the connection or of the node.
    pub(super) fn local(&mut self, name: CommandName, args: Args<'_>) {
        // Held until it is answered.
        let _turn = match self.turn.take() {
            Ok(turn) => turn,
            Err(refusal) => return self.refused_turn(refusal),
        };
        let after = match may_be_long(name, args) {
            false => {
                let out = self.places.tail(&mut self.output);
                self.session.answer(name, args, &*self.running, out)
            }
            // It shows how long an answer is when it is there.
            true => {
                let mut answer = Output::new();
                let after = self.session.answer(name, args, &*self.running, &mut answer);
                let behind = self.behind();
                if answer.len() > OWN_BYTES && !self.has_memory(answer.len(), behind) {
                    return self.no_memory(answer.len(), false);
                }
                self.places.tail(&mut self.output).append(&mut answer);
                after
            }
        };
        self.closing |= after == After::Close;
        if matches!(
            name,
            CommandName::Client | CommandName::Hello | CommandName::Reset
        ) {
            let client = self.session.client();
            let mut clients = self.running.door.clients.lock();
            clients.insert(client.id, client.clone());
        }
    }

    /// DBSIZE.
    pub(super) fn key_count(&mut self) {
        let turn = match self.turn.take() {
            Ok(turn) => turn,
            Err(refusal) => return self.refused_turn(refusal),
        };
        if self.routes.door.is_none() {
            let text = self.no_pool();
            return self.places.tail(&mut self.output).error(&text);
        }
        if self.running.redirect == Redirect::Moved {
            let host = &self.running.host;
            let keys = host.figures_of(self.routes.door).counter("cache_keys");
            return self.places.tail(&mut self.output).integer(keys as i64);
        }
        let place = self.places.next();
        self.places.push_one(
            Join::Plain,
            self.session.protocol(),
            self.deadline,
            PartialReply::Away,
        );
        let (running, completions) = (self.running.clone(), self.completions.clone());
        tokio::spawn(async move {
            let answer = running.key_count().await;
            completions.answer(place, 0, Ok(answer), None);
            drop(turn);
        });
    }
}
