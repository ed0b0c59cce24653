//! Commands that no bucket answers: those of the connection and of the node, and DBSIZE.

use staves_resp::{After, Args, Command, CommandName, Join, PartialReply, Redirect};

use super::Executor;

impl Executor {
    /// True if this command is costly and the connection has no turn for it: it is looked at again with one.
    pub(super) fn waits_for_turn(&mut self, command: &Command<'_>) -> bool {
        self.wants_turn = self.turn.is_none() && !self.transaction.is_open && command.is_costly();
        self.wants_turn
    }

    /// Answers a command of the connection or of the node.
    pub(super) fn local(&mut self, name: CommandName, args: Args<'_>) {
        let out = self.places.tail(&mut self.output);
        let after = self.session.answer(name, args, &*self.running, out);
        self.closing |= after == After::Close;
        if matches!(
            name,
            CommandName::Client | CommandName::Hello | CommandName::Reset
        ) {
            let client = self.session.client();
            let mut clients = self.running.door.clients.lock();
            clients.insert(client.id, client.clone());
        }
        self.turn = None;
    }

    /// DBSIZE.
    pub(super) fn key_count(&mut self) {
        let turn = self.turn.take();
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
