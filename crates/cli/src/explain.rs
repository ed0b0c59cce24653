//! `staves explain`: every error code, what happened, why, and what to do.
//!
//! There are three kinds of code: those that nodes send ([`ErrorCode`], stable on the wire), those of the
//! program itself ([`Own`]), and the words that only clients of Redis's protocol meet ([`Redis`]). All are
//! explained by an exhaustive `match`: a code without a text does not compile.

use serde::Serialize;
use staves_node::config::nearest;
use staves_wire::ErrorCode;

use staves_cli_common::codes::{Code, Own, Redis};
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, properties, table};

/// The explanation of a code.
pub struct Explained {
    /// Its meaning.
    pub happened: &'static str,
    /// Its causes.
    pub why: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// The text of a code.
pub fn explained(code: Code) -> Explained {
    let (happened, why, remedy) = match code {
        Code::Wire(code) => of_wire(code),
        Code::Own(code) => of_own(code),
        Code::Redis(code) => of_redis(code),
    };
    Explained {
        happened,
        why,
        remedy,
    }
}

type Text = (&'static str, &'static str, &'static str);

fn of_wire(code: ErrorCode) -> Text {
    match code {
        ErrorCode::Malformed => (
            "What was asked for makes no sense as it stands. Nothing was done.",
            "An argument is out of range (an offset past a region's end, 0 bytes, a word that is not at a multiple of 8, writes that overlap), or the sender does not follow the protocol.",
            "The message says what is wrong: ask for what there is. If it speaks of the message itself, use a client of the same version as the nodes.",
        ),
        ErrorCode::Unsupported => (
            "The node does not know this message or option. Nothing was done.",
            "The client is newer than the node, or asks for what this version does not have.",
            "Upgrade the node, or do without.",
        ),
        ErrorCode::TooLarge => (
            "A key, a value, a record of a log or a message is larger than the limit. Nothing was done.",
            "A value has more than the node's value_bytes_max (512MiB at most), a key more than 64 KiB, or a record, or an append of several, more than 1 MiB.",
            "Shorten the key, split the value or the record, append fewer records at a time, or raise value_bytes_max on every node (records have no such option).",
        ),
        ErrorCode::WrongCluster => (
            "The node asked belongs to another cluster, or the asker's life is over.",
            "An address is of another cluster, or the same node was started again elsewhere.",
            "Check the addresses in --cluster and --join. A node that was replaced stops by itself.",
        ),
        ErrorCode::Denied => (
            "Not allowed for who asked, or a dataset's source lets nobody in with these credentials. Nothing was done.",
            "The message is for nodes only. Or the cluster has a secret, and this process has none or another. Or the source, which the message names, refuses this process: it has no credentials or others than it had, or the user may not read the folder.",
            "Ask in the role that may. For a secret: give --secret-file (STAVES_SECRET_FILE), with the nodes' secret for a node. For a source: give this process credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) that read the bucket, or be a user who may read the folder. Nodes have credentials of their own; those that have none leave the reading to the mounts.",
        ),
        ErrorCode::NotServing => (
            "The bucket is not answered for here, or not now. Nothing was done.",
            "The bucket is moving on to new members after a node's death or a planned change, or it is cut off from the directory's majority.",
            "Ask again: a takeover takes less than 2 s. If it lasts, look at 'staves status'.",
        ),
        ErrorCode::Busy => (
            "A bound was reached: a full log, a full queue, the memory for requests under way, or the number of those that wait. Nothing was done.",
            "Requests come in faster than the copies take them, or one copy is slow. Or clients begin more large requests than they end, or ask for more than they take.",
            "Ask again a little later. If it lasts, look which node is slow, or raise log_bytes_max, in_flight_bytes_max or in_flight_requests_max, whichever the error names.",
        ),
        ErrorCode::Deadline => (
            "The deadline passed before there was an answer. The request may or may not have taken effect.",
            "A takeover took longer than request_ms, the cluster is overloaded, or it has no majority.",
            "Read before writing again, or retry under the same request number. Look at 'staves status'.",
        ),
        ErrorCode::Unreachable => (
            "The node that had to be asked, or a dataset's source, could not be reached. A request to a node may or may not have taken effect; of a source, only what is in memory can be read.",
            "The node died or was cut off while it was asked; or no node runs at the address. Or the source, which the message names, does not answer: its server or the way to it is down, or the folder is on a file server that is gone.",
            "Check the address (--cluster, STAVES_CLUSTER) and that a node runs there; then ask again. For a source: see that its server answers from this machine ('ls' in the folder, 'curl' to the address). Mounts go on by themselves once it does.",
        ),
        ErrorCode::Forgotten => (
            "The retry came too late to tell whether the first try took effect.",
            "The bucket keeps the answers to each client's newest requests only, and this one's is gone.",
            "Read the key, and decide whether to write again.",
        ),
        ErrorCode::AnswerGone => (
            "It was done, and its answer is gone: a value too large to be kept for a retry, or to be sent.",
            "The first try's answer was lost with its connection or its node; values above 4 KiB are not kept.",
            "Do not write again. The old value that it asked for cannot be had any more.",
        ),
        ErrorCode::Stopping => (
            "The node is on its way out. Nothing was done.",
            "It was asked to stop.",
            "Ask another node.",
        ),
        ErrorCode::OutOfMemory => (
            "The pool's memory is used up. A write of a key changed nothing anywhere; one of many bytes of a region may have been done in part, and says where to go on.",
            "A member of the bucket has no room for the write, or no unit of a log for an append. There is no eviction.",
            "Give the pool more memory ('staves pool set NAME --memory SIZE'), add nodes, or delete keys (of a memory pool: regions; of a pool of logs: trim logs with 'staves log trim NAME --to POSITION', or delete some).",
        ),
        ErrorCode::NotAnInteger => (
            "The value is no integer, or an argument is none. Nothing was done.",
            "INCR and its kin need a value that is a whole number of 64 bits.",
            "Look at the value; set it to a number.",
        ),
        ErrorCode::Overflow => (
            "The result would not fit into 64 bits. Nothing was done.",
            "The counter stands near the end of the range.",
            "Use a smaller step, or set the counter anew.",
        ),
        ErrorCode::Lost => (
            "More members of a group were lost than its scheme bears: nobody can answer for its bytes. Other groups go on.",
            "More nodes than the scheme's k failed before what they held was made anew elsewhere; memory does not survive the end of its process.",
            "If a node was only cut off, bring it back: its memory is still there. Else the bytes are gone: delete the region ('staves memory delete NAME'), make it anew and fill it again; or delete the pool. 'staves status' names the regions. The records of a log that lay in a lost unit are gone, and a log with a lost unit cannot be given a new sequencer: read what other positions hold ('staves log read NAME --from POSITION'), then delete the pool of logs and make it anew.",
        ),
        ErrorCode::Fenced => (
            "A write to a volume came from a client whose session has ended. It was not done.",
            "Another client attached the volume meanwhile ('staves volume show NAME' says which), or somebody detached it.",
            "Make sure that only one client uses the volume, and connect that one again.",
        ),
        ErrorCode::LogFull => (
            "The log took no append until the deadline: it is full. The append may be in the log all the same.",
            "It keeps records that its oldest cursor has not passed, has as many of them as it may, and refuses more ('staves log set NAME --when-full refuse').",
            "Let the reader move its cursor ('staves log cursor list NAME' shows them), delete the cursor, trim the log, or let the log discard old records ('staves log set NAME --when-full discard'). Read the log's end before you append again.",
        ),
        ErrorCode::NotFound => (
            "There is no such pool, node, group, key, log or code; no such position of a log (it is trimmed, or past the tail); or no such dataset, file, source or folder to mount at.",
            "A slip, or it was deleted, trimmed or forgotten.",
            "List what there is: 'staves pool list', 'staves node list', 'staves group list', 'staves log list', 'staves files list', 'staves files show DATASET'; 'staves log show NAME' says where a log begins and ends. A folder that is a source must be on this machine.",
        ),
        ErrorCode::Refused => (
            "The change was refused. The map has not changed.",
            "The change would break a rule of the cluster; the message says which.",
            "Do what the message says.",
        ),
        ErrorCode::NotLeader => (
            "The node asked does not lead the directory.",
            "An election is under way, or the asker's hint was old.",
            "Ask again: an election takes less than a second.",
        ),
        ErrorCode::NoQuorum => (
            "The directory has no majority at present. Nothing was done.",
            "Half or more of its voters are down or cut off.",
            "Start its voters again, with their data folders: 'staves status' names those that do not answer. Until then nothing can be changed or repaired.",
        ),
        ErrorCode::Internal => (
            "A fault of Staves.",
            "Something happened that must not happen.",
            "Report it, with the node's log.",
        ),
    }
}

fn of_own(code: Own) -> Text {
    match code {
        Own::Failed => (
            "The command failed; the message says why.",
            "A fault without a code of its own, of the system most often.",
            "Do what the message says.",
        ),
        Own::Usage => (
            "The command line is wrong. Nothing was done.",
            "An unknown command or flag, a missing argument, or a value that does not fit.",
            "See 'staves help COMMAND'.",
        ),
        Own::Interrupted => (
            "The command was interrupted. What 'files preload' had loaded by then is in memory; what 'bench cache' had measured is told.",
            "Ctrl-C, or a signal (SIGINT).",
            "Give the same command again: what 'files preload' has in memory is not fetched again.",
        ),
        Own::Degraded => (
            "'status --check': everything is answered, but something is missing or being rebuilt.",
            "A node is down and not forgotten, buckets are short of copies or moving, all nodes are drained, or there is no pool.",
            "Read the sentence that 'staves status' opens with. What is being rebuilt needs only time.",
        ),
        Own::Critical => (
            "'status --check': something is lost, or is refused until somebody does something about it.",
            "The directory has no leader or no majority, a pool has used up its memory or its room on disk on a node, nobody answers for a data bucket for want of a node with room, or buckets lost all members.",
            "Read the sentence that 'staves status' opens with: it names what to start again or to make larger.",
        ),
        Own::ConditionNotMet => (
            "The key has a value already, so nothing was set.",
            "--if-absent sets only keys without a value.",
            "Leave it out to set the key all the same.",
        ),
        Own::NeedsForce => (
            "The command would do harm, or could never finish. Nothing was done.",
            "The nodes that are left could not hold the data, or the node that is to be forgotten lives.",
            "Do what the message says first; or give --force if it is meant.",
        ),
        Own::NotConfirmed => (
            "The command would delete data, and nobody confirmed it. Nothing was done.",
            "It asks on a terminal, and takes --yes where there is none.",
            "Give --yes if it is meant.",
        ),
        Own::BadConfiguration => (
            "The node's configuration is refused. Nothing was started.",
            "An unknown key, a value that does not fit, or values that contradict each other.",
            "The message names file, line and key. 'staves config check' looks without starting.",
        ),
        Own::PortInUse => (
            "Another process listens at a door's address.",
            "Another node, or redis-server, runs on this machine.",
            "Stop it, or choose another address with --listen, --resp or --admin.",
        ),
        Own::CannotBind => (
            "A door cannot be opened at its address.",
            "The address is not this machine's, or the port needs rights that the process lacks.",
            "Choose another address with --listen, --resp or --admin.",
        ),
        Own::NoMemory => (
            "The memory for pages cannot be had. Nothing was started.",
            "The machine, or the process's limit, has less than --memory asks for.",
            "Ask for less with --memory.",
        ),
        Own::NoClusterToJoin => (
            "The node found no cluster, or no leader of it, in time.",
            "No node runs at the addresses of --join, or the directory has no majority.",
            "Check the addresses; leave join out on the first node of a new cluster; bring the directory's voters back; raise join_ms if nodes start slowly.",
        ),
        Own::FolderInUse => (
            "Another process has the data folder open.",
            "A node runs on it already.",
            "Stop that process, or give this node a folder of its own with --data.",
        ),
        Own::FolderUnusable => (
            "The data folder cannot be read or written.",
            "Rights, a full disk, or a damaged file.",
            "Repair it, or start with an empty folder as a new node and forget the old one.",
        ),
        Own::FolderNewer => (
            "A newer program wrote the data folder.",
            "The program was set back to an older version.",
            "Run the newer version.",
        ),
        Own::OtherCluster => (
            "The data folder belongs to one cluster, the node at --join to another; or the nodes at --join belong to two.",
            "Folders or addresses were mixed up.",
            "Join nodes of one cluster, the folder's; or start with an empty folder.",
        ),
        Own::NodeRemoved => (
            "The cluster no longer knows this node.",
            "Somebody ran 'staves node forget' on it.",
            "Start with an empty data folder: it joins as a new node.",
        ),
        Own::IdentityTaken => (
            "Two processes have one node's identity. Only one of them runs on.",
            "A data folder was copied, and a node was started on the copy.",
            "Let one process run on each identity: give the other an empty data folder.",
        ),
        Own::AddressTaken => (
            "The address that the node advertises is that of another node, which runs.",
            "Two nodes were told the same --advertise.",
            "Advertise the address at which others reach this node.",
        ),
        Own::DirectoryStopped => (
            "The directory of this node does not run.",
            "Its data folder failed, or the node was stopped.",
            "Read the message and the node's log; start the node again.",
        ),
    }
}

fn of_redis(code: Redis) -> Text {
    match code {
        Redis::Loading => (
            "The node has not joined its cluster yet. Nothing was done.",
            "It was started a moment ago; or it finds no node to join, or its directory has no majority. The text says what it waits for.",
            "Ask again, or ask another node. If it lasts, start what it waits for.",
        ),
        Redis::Moved => (
            "Another node serves the key: MOVED, its hash slot, and that node's address. Nothing was done.",
            "The nodes are told to send clients there (--resp-redirect moved).",
            "Use a client that knows Redis Cluster ('redis-cli -c'), or start the nodes with --resp-redirect forward.",
        ),
        Redis::CrossSlot => (
            "The keys of one command are in several hash slots. Nothing was done.",
            "With --resp-redirect moved a command has keys of one slot only, as in Redis Cluster.",
            "Send one command for each, or give keys that belong together the same part in braces; or start the nodes with --resp-redirect forward.",
        ),
        Redis::NoProto => (
            "HELLO asked for a version of the protocol that there is not.",
            "There are versions 2 and 3.",
            "Let the client speak RESP2 or RESP3.",
        ),
    }
}

#[derive(Serialize)]
struct CodeRow {
    code: &'static str,
    number: Option<u16>,
    resp: Option<&'static str>,
    exit_code: Option<u8>,
    happened: &'static str,
    why: &'static str,
    remedy: &'static str,
}

fn row(code: Code) -> CodeRow {
    let Explained {
        happened,
        why,
        remedy,
    } = explained(code);
    CodeRow {
        code: code.word(),
        number: code.number(),
        resp: code.resp(),
        exit_code: code.exit_code(),
        happened,
        why,
        remedy,
    }
}

/// Explains one code, or lists all.
pub fn run(code: Option<&str>, out: Format) -> anyhow::Result<()> {
    let Some(wanted) = code else {
        let rows: Vec<CodeRow> = Code::all().map(row).collect();
        return output::answer(out, &rows, |rows| {
            let lines = rows
                .iter()
                .map(|row| vec![row.code.to_owned(), row.happened.to_owned()]);
            table(&["code", "what happened"], lines)
        });
    };
    let found = find(wanted)?;
    match found[..] {
        [code] => output::answer(out, &row(code), described),
        _ => {
            let rows: Vec<CodeRow> = found.into_iter().map(row).collect();
            output::answer(out, &rows, |rows| {
                rows.iter().map(described).collect::<Vec<_>>().join("\n\n")
            })
        }
    }
}

fn described(row: &CodeRow) -> String {
    let mut pairs = vec![("code", row.code.to_owned())];
    pairs.extend(
        row.resp
            .map(|word| ("on the RESP door", format!("-{word}"))),
    );
    pairs.extend(row.exit_code.map(|exit| ("exit code", exit.to_string())));
    pairs.extend([
        ("what happened", row.happened.to_owned()),
        ("why", row.why.to_owned()),
        ("what to do", row.remedy.to_owned()),
    ]);
    properties(pairs)
}

/// A code by its word or its number; or all codes that clients of Redis meet under this word.
fn find(wanted: &str) -> Result<Vec<Code>, Failure> {
    let word = wanted
        .trim_start_matches('-')
        .to_ascii_lowercase()
        .replace('_', "-");
    // '-OOM' is how Redis's protocol begins an error; '-1' is no number of ours.
    let number = wanted.parse().ok();
    let is = |code: &Code| {
        code.word().eq_ignore_ascii_case(&word) || (number.is_some() && code.number() == number)
    };
    if let Some(code) = Code::all().find(is) {
        return Ok(vec![code]);
    }
    let has_word = |code: &Code| {
        code.resp()
            .is_some_and(|resp| resp.eq_ignore_ascii_case(&word))
    };
    let met: Vec<Code> = Code::all().filter(has_word).collect();
    if !met.is_empty() {
        return Ok(met);
    }
    let of_redis = || {
        nearest(
            &word.to_ascii_uppercase(),
            Code::all().filter_map(Code::resp),
        )
    };
    let hint = match nearest(&word, Code::all().map(Code::word)).or_else(of_redis) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => {
            let mut met: Vec<&str> = Code::all().filter_map(Code::resp).collect();
            met.sort_unstable();
            met.dedup();
            let met = met.join(", ");
            format!("'staves explain' lists them, and the RESP door's words are {met}")
        }
    };
    Err(Failure::NotFound(format!(
        "there is no error code '{wanted}'; {hint}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_word_of_its_own_and_three_whole_sentences() {
        let mut words = std::collections::BTreeSet::new();
        for code in Code::all() {
            assert!(words.insert(code.word()), "{} stands twice", code.word());
            let Explained {
                happened,
                why,
                remedy,
            } = explained(code);
            for text in [happened, why, remedy] {
                let whole = text.len() > 10 && text.ends_with(['.', '\'']);
                assert!(whole, "{}: '{text}' is no sentence", code.word());
            }
            assert_eq!(find(code.word()), Ok(vec![code]));
        }
        let all = ErrorCode::ALL.len() + Own::ALL.len() + Redis::ALL.len();
        assert_eq!(words.len(), all);
    }

    /// Regression: none of these said a word of logs.
    #[test]
    fn what_logs_answer_is_explained_too() {
        let codes = ["lost", "too-large", "not-found", "out-of-memory"];
        let remedies = [
            "'staves log read",
            "append fewer",
            "'staves log list'",
            "'staves log trim",
        ];
        for (code, remedy) in codes.into_iter().zip(remedies) {
            let found = find(code).expect("a code");
            let described = described(&row(found[0]));
            assert!(described.contains(remedy), "{described}");
        }
    }

    /// Mounts meet these codes because of a source most often.
    #[test]
    fn what_a_source_refuses_or_does_not_answer_is_explained_too() {
        for (code, remedy) in [("denied", "AWS_PROFILE"), ("unreachable", "the folder")] {
            let found = find(code).expect("a code");
            let described = described(&row(found[0]));
            assert!(
                described.contains("source") && described.contains(remedy),
                "{described}"
            );
        }
    }

    #[test]
    fn words_of_redis_and_slips_lead_to_codes() {
        let oom = vec![Code::Wire(ErrorCode::OutOfMemory)];
        assert_eq!(find("OOM"), Ok(oom.clone()));
        assert_eq!(find("-OOM"), Ok(oom.clone()));
        assert_eq!(find("OUT_OF_MEMORY"), Ok(oom));
        assert!(find("tryagain").is_ok_and(|codes| codes.len() > 1));
        let slip = find("not-fuond").expect_err("no code").to_string();
        assert!(slip.ends_with("did you mean 'not-found'?"), "{slip}");
        let slip = find("TRYAGIAN").expect_err("no code").to_string();
        assert!(slip.ends_with("did you mean 'TRYAGAIN'?"), "{slip}");
        let far = find("xyzzyplugh").expect_err("no code").to_string();
        let listed = [
            "'staves explain' lists them",
            "CLUSTERDOWN, CROSSSLOT, ERR, IOERR, LOADING, MOVED",
        ];
        assert!(listed.iter().all(|text| far.contains(text)), "{far}");
        assert_eq!(find("moved"), Ok(vec![Code::Redis(Redis::Moved)]));
        assert_eq!(find("12"), Ok(vec![Code::Wire(ErrorCode::Deadline)]));
        for none in ["0", "-1", "-12", "4294967297", ""] {
            let told = find(none).expect_err("no code").to_string();
            assert!(
                told.contains(&format!("no error code '{none}'"))
                    && told.contains("staves explain"),
                "{told}"
            );
        }
    }
}
