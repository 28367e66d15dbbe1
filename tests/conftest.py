"""Settings for all tests."""


def pytest_configure(config):
    # Raised as an error while Box2D's SWIG module loads, this warning crashes the interpreter.
    config.addinivalue_line(
        "filterwarnings", "ignore:builtin type .* has no __module__ attribute:DeprecationWarning"
    )
