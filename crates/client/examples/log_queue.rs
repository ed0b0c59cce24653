//! A work queue that several programs share through a log: one pushes items, any number take them, work, and acknowledge.
//!
//! ```text
//! staves pool create logs --kind log --memory 64MiB && staves log create jobs --keep-records 1
//! cargo run -p staves-client --example log_queue -- 127.0.0.1:1600 jobs push resize-1 resize-2 resize-3
//! cargo run -p staves-client --example log_queue -- 127.0.0.1:1600 jobs work
//! ```
//!
//! End a worker in the middle of an item: another gets it when the lease of 10 seconds is over. An item that was delivered five times is printed
//! as dead.

use std::time::Duration;

use staves_client::{Client, ClientOptions, LogQueue, QueueOptions};

/// The tag of the queue's stream.
const TAG: u64 = 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [node, log, command, items @ ..] = &args[..] else {
        return Err("give a node, a log, and 'push' with items, or 'work'".into());
    };
    let client = Client::connect(std::slice::from_ref(node), ClientOptions::default()).await?;
    let options = QueueOptions {
        lease: Duration::from_secs(10),
        deliveries_max: 5,
    };
    let mut queue = LogQueue::open(&client, None, log, TAG, options).await?;
    if command == "push" {
        let items: Vec<_> = items.iter().map(|item| item.clone().into()).collect();
        let first = queue.push(&items).await?;
        println!("{} items from position {first} on", items.len());
        return Ok(());
    }
    loop {
        let taken = queue.take(1, Duration::from_secs(5)).await?;
        if taken.is_empty() {
            break;
        }
        for item in &taken {
            let text = item.item.escape_ascii();
            println!("{text}, delivery {}", item.deliveries);
            // The work.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if queue.acknowledge(&taken).await?.is_empty() {
            println!("that took too long: another worker has it");
        }
    }
    for (position, deliveries, item) in queue.dead(100).await? {
        let text = item.escape_ascii();
        println!("{text} at {position} is dead after {deliveries} deliveries");
    }
    // So that the next one begins here, and the log may give up what lies below.
    queue.move_cursor().await?;
    Ok(())
}
