//! Writes to a cluster without pause, and says what became of the writes: run it, and kill nodes.
//!
//! ```text
//! cargo run -p staves-client --example steady -- 127.0.0.1:1600,127.0.0.1:1601 30
//! ```
//!
//! The arguments are native addresses of nodes, and for how many seconds to write. Every write is a
//! number that is added to a counter, so that it would show if one were lost or done twice: in the end
//! the counters are at least what was acknowledged, and at most that and what is uncertain.

use std::time::{Duration, Instant};

use staves_client::{Answer, Client, ClientOptions, OwnedOp};

/// Counters, so that all nodes have some.
const COUNTERS: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let addresses = args.next().unwrap_or_else(|| "127.0.0.1:1600".to_owned());
    let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
    let seconds = args.next().map_or(Ok(10), |text| text.parse())?;

    let client = Client::connect(&addresses, ClientOptions::default()).await?;
    let keys: Vec<String> = (0..COUNTERS).map(|i| format!("steady:{i}")).collect();
    let before = read(&client, &keys).await?;
    let mut story = Story::default();
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        story.write(&client, &keys).await?;
    }
    let counted = read(&client, &keys).await? - before;

    let Story {
        acknowledged,
        uncertain,
        refused,
        longest,
    } = story;
    println!("{acknowledged} writes acknowledged, {uncertain} uncertain, {refused} not done");
    println!("no batch took longer than {} ms", longest.as_millis());
    println!("the counters grew by {counted}");
    if (acknowledged..=acknowledged + uncertain).contains(&counted) {
        return Ok(());
    }
    Err(format!("{counted} is not between {acknowledged} and {uncertain} more").into())
}

/// The outcomes of the writes.
#[derive(Default)]
struct Story {
    acknowledged: i64,
    uncertain: i64,
    refused: i64,
    longest: Duration,
}

impl Story {
    /// Adds one to every counter, in one batch.
    async fn write(
        &mut self,
        client: &Client,
        keys: &[String],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let add = |key: &String| OwnedOp::IncrBy {
            key: key.clone().into(),
            by: 1,
        };
        let begun = Instant::now();
        for answer in client.execute(keys.iter().map(add).collect()).await? {
            match answer {
                Answer::Int(_) => self.acknowledged += 1,
                Answer::Error(code, _) if code.nothing_done() => self.refused += 1,
                Answer::Error(..) => self.uncertain += 1,
                other => return Err(format!("a counter answered {other:?}").into()),
            }
        }
        self.longest = self.longest.max(begun.elapsed());
        Ok(())
    }
}

/// The sum of all counters.
async fn read(client: &Client, keys: &[String]) -> Result<i64, Box<dyn std::error::Error>> {
    let get = |key: &String| OwnedOp::Get {
        key: key.clone().into(),
    };
    let mut sum = 0;
    for answer in client.execute(keys.iter().map(get).collect()).await? {
        match answer {
            Answer::Nil => {}
            Answer::Value(text) => sum += std::str::from_utf8(&text)?.parse::<i64>()?,
            other => return Err(format!("a counter is {other:?}").into()),
        }
    }
    Ok(sum)
}
