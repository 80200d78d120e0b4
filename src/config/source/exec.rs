//! Runs a command for the value that it prints: no shell, no stdin, bounded in time and size.

use std::{io, path::Path, process::Stdio, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    runtime::Builder,
    time::timeout,
};

use super::secret_values::VALUE_BYTES_MAX;
use crate::config::{Environment, SecretKeyPlace};

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What `command` prints, which runs in `directory` and has the variables of `environment`, but for the key of
/// secrets.
pub(super) fn run(
    command: &[String],
    directory: &Path,
    environment: &Environment,
) -> Result<Vec<u8>, String> {
    // Configs are read on threads of a runtime and on others.
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let running = run_within(command, directory, environment, TIMEOUT);
        runtime
            .map_err(|error| error.to_string())?
            .block_on(running)
    };
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err("running it was interrupted".to_owned()))
}

async fn run_within(
    command: &[String],
    directory: &Path,
    environment: &Environment,
    limit: Duration,
) -> Result<Vec<u8>, String> {
    let Some((program, args)) = command.split_first() else {
        return Err("no command is named".to_owned());
    };
    let variables = environment.names().filter_map(|name| {
        let is_key = name == SecretKeyPlace::VARIABLE;
        Some((name, environment.get(name).filter(|_| !is_key)?))
    });
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(variables)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    match timeout(limit, output(&mut child)).await {
        Ok(Ok(output)) => {
            let code = child.wait().await.map_err(|error| error.to_string())?;
            code.success().then_some(output).ok_or(code.to_string())
        }
        Ok(Err(error)) => {
            end(child).await;
            Err(error.to_string())
        }
        Err(_) => {
            end(child).await;
            Err(format!("it took longer than {limit:?}"))
        }
    }
}

/// What `child` prints until it ends.
async fn output(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // A line break may follow the value.
        let limit = VALUE_BYTES_MAX + 2;
        let mut limited = stdout.take(limit as u64 + 1);
        limited.read_to_end(&mut output).await?;
        if output.len() > limit {
            let why = format!("it printed more than {VALUE_BYTES_MAX} bytes");
            return Err(io::Error::other(why));
        }
    }
    child.wait().await?;
    Ok(output)
}

/// Ends the command and all that it started in its process group.
async fn end(mut child: Child) {
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(group) = group {
        // All of them may have ended.
        kill_process_group(group, Signal::KILL).unwrap_or_default();
    }
    drop(child.wait().await);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Vec<u8>, String> {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let environment = Environment::from_iter([
            ("PATH", "/usr/bin:/bin"),
            ("VAULT", "there"),
            (SecretKeyPlace::VARIABLE, "key"),
        ]);
        let runtime = Builder::new_current_thread().enable_all().build();
        let running = run_within(&command, Path::new("/"), &environment, limit);
        runtime.unwrap().block_on(running)
    }

    #[test]
    fn a_command_gives_what_it_prints() {
        let second = Duration::from_secs(20);
        assert_eq!(shell("echo $VAULT; pwd", second).unwrap(), b"there\n/\n");
        let key = format!("echo \"[${}]\"", SecretKeyPlace::VARIABLE);
        assert_eq!(shell(&key, second).unwrap(), b"[]\n");
        let error = shell("echo half; exit 3", second).unwrap_err();
        assert!(error.contains("exit status: 3"), "{error}");
        let missing = run(
            &["no-such-program".to_owned()],
            Path::new("/"),
            &Environment::default(),
        );
        assert!(missing.unwrap_err().contains("No such file"));
    }

    #[test]
    fn a_command_has_a_limit_of_time_and_size() {
        let short = Duration::from_millis(200);
        // Neither holds who does not end, nor who leaves a child behind that keeps stdout open.
        for script in ["sleep 60", "exec >&-; sleep 60", "sleep 60 & exit 0"] {
            let error = shell(script, short).unwrap_err();
            assert!(error.contains("longer than"), "{script}: {error}");
        }
        let long = Duration::from_secs(20);
        let exact = format!("head -c {VALUE_BYTES_MAX} /dev/zero");
        assert_eq!(shell(&exact, long).unwrap().len(), VALUE_BYTES_MAX);
        let error = shell("cat /dev/zero", long).unwrap_err();
        assert!(error.contains("65536 bytes"), "{error}");
    }
}
