// `fetch` of Node before its version 24, with the proxy of the variables. See docs/how-to/network.md.
import { EnvHttpProxyAgent, setGlobalDispatcher } from "undici";

setGlobalDispatcher(new EnvHttpProxyAgent());
