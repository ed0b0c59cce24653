//! A map that several programs share through a log: each run adds money to an account, and takes it from another.
//!
//! ```text
//! staves pool create logs --kind log --memory 64MiB && staves log create accounts
//! cargo run -p staves-client --example log_map -- 127.0.0.1:1600 accounts alice bob 5
//! ```
//!
//! Both sums change in one transaction, or none does; run it several times at once, and the sum of all accounts stays what it was.

use staves_client::{Client, ClientOptions, LogMap, MapTransaction};

/// The tag of the map's stream.
const TAG: u64 = 1;

fn amount(transaction: &MapTransaction<'_>, account: &str) -> i64 {
    let text = transaction.get(account.as_bytes());
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [node, log, to, from, sum] = &args[..] else {
        return Err(
            "give a node, a log, the account that gets, the one that gives, and the sum".into(),
        );
    };
    let sum: i64 = sum.parse()?;
    let client = Client::connect(std::slice::from_ref(node), ClientOptions::default()).await?;
    let mut map = LogMap::new(client.open_log(None, log).await?, TAG);
    map.transact(|transaction| {
        let (gets, gives) = (
            amount(transaction, to) + sum,
            amount(transaction, from) - sum,
        );
        transaction.put(to.clone(), gets.to_string());
        transaction.put(from.clone(), gives.to_string());
    })
    .await?;
    for (account, amount) in map.entries() {
        println!("{} has {}", account.escape_ascii(), amount.escape_ascii());
    }
    Ok(())
}
