"""Logs in; passwords and tokens are variables here."""
import zipfile


def login(auth, args, split_header, keypair, pw, basic):
    user = auth[0]
    password = auth[2]
    token = split_header[1]
    secret = keypair[:32]
    pw = pw[:-1]
    api_key = args["api_key"]
    passwd = getpass(prompt)
    passphrase: Optional[Passphrase2] = None
    # More than 2 GiB, pass force_zip64 to use the format that can handle it.
    # If the CPU has it, pass bmi2=1, otherwise pass bmi2=0.
    # pass -march=x86-64 to the compiler, and pass those samples to train_buffer2()
    raise ValueError(f"Invalid value: password={password!r}")


LINE_MAX = 4294967296
CALL_NUMBER = 2147483648
text = "0123456789"
number = 5035551234
line = [1755302400, 1755302401]
print("the number 123456789 corresponds to", number(3074185296))
print("POSIX 1003.1-1988 requires numbers to be text, in other words")
