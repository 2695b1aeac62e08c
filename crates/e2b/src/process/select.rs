//! Finds the exec that a client selects by pid or tag.

use saggar_http::access::Insider;
use saggar_runtime::Action;
use saggar_supervisor::control::ExecDescription;

use super::message::Selector;
use super::no_process;
use crate::failure::CallFailure;
use crate::state::Shared;

/// The execs known to the supervisor, oldest first.
pub(super) async fn execs(server: &Shared, insider: &Insider) -> Result<Vec<ExecDescription>, CallFailure> {
    let permit = insider.may(Action::ReadSandbox)?;
    Ok(server.sandboxes.describe(&permit).await?.execs)
}

/// The selected exec, running or not.
pub(super) async fn any(
    server: &Shared,
    insider: &Insider,
    selector: &Selector,
) -> Result<ExecDescription, CallFailure> {
    pick(execs(server, insider).await?, selector).ok_or_else(|| no_process(selector))
}

/// The selected exec, if it runs.
pub(super) async fn running(
    server: &Shared,
    insider: &Insider,
    selector: &Selector,
) -> Result<ExecDescription, CallFailure> {
    let exec = any(server, insider, selector).await?;
    if runs(&exec) { Ok(exec) } else { Err(no_process(selector)) }
}

/// Whether it has a running process. Its end may still wait behind unread output.
pub(super) fn runs(exec: &ExecDescription) -> bool {
    exec.status.is_none() && !exec.is_deserted
}

fn pick(execs: Vec<ExecDescription>, selector: &Selector) -> Option<ExecDescription> {
    let is_meant = |exec: &ExecDescription| match (selector.pid, &selector.tag) {
        // The pid 0 belongs to an exec that never started.
        (Some(pid), _) => pid > 0 && exec.pid == pid,
        (None, Some(tag)) => exec.tag.as_ref() == Some(tag),
        (None, None) => false,
    };
    let meant = || execs.iter().rev().filter(|exec| is_meant(exec));
    meant().find(|exec| runs(exec)).or_else(|| meant().next()).cloned()
}

#[cfg(test)]
mod tests {
    use saggar_domain::ExecId;
    use serde_json::json;

    use super::*;

    fn exec(bits: u8, pid: u32, tag: Option<&str>, is_running: bool) -> ExecDescription {
        serde_json::from_value(json!({
            "exec_id": ExecId::from_random([bits; 16]), "argv": [], "pid": pid, "tag": tag, "has_terminal": false, "started_ms": 0,
            "status": if is_running { json!(null) } else { json!("exited") },
            "stdout_bytes": 0, "stderr_bytes": 0, "stdout_dropped": 0, "stderr_dropped": 0,
        }))
        .unwrap()
    }

    #[test]
    fn a_running_one_is_meant_before_one_that_has_ended_and_the_newest_of_those() {
        let execs = vec![
            exec(1, 7, None, false),
            exec(2, 7, Some("a"), true),
            exec(3, 7, None, false),
            exec(4, 8, None, false),
            exec(5, 8, Some("a"), false),
            exec(6, 0, None, false),
        ];
        let find = |pid: Option<u32>, tag: Option<&str>| {
            let selector = Selector { pid, tag: tag.map(str::to_owned) };
            pick(execs.clone(), &selector).map(|exec| exec.exec_id)
        };
        let id = |bits: u8| Some(ExecId::from_random([bits; 16]));
        assert_eq!([find(Some(7), None), find(Some(8), None)], [id(2), id(5)]);
        assert_eq!([find(None, Some("a")), find(None, Some("b"))], [id(2), None]);
        assert_eq!([find(Some(9), None), find(Some(0), None), find(None, None)], [None, None, None]);
    }
}
