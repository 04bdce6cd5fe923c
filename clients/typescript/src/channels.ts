/** The channel of a WebSocket, of a browser or of Node: a message of JSON-RPC is a text message. */

import { AbstractMessageReader, AbstractMessageWriter } from "vscode-jsonrpc";
import type { DataCallback, Disposable, Message, MessageWriter } from "vscode-jsonrpc";

import type { Channel } from "./connection.js";

/** What a channel needs of a WebSocket after its handshake. */
export interface OpenWebSocket {
  send(text: string): void;
  /** Send a close frame. */
  close(): void;
  /** End it at once, as far as that is possible. */
  terminate(): void;
  onMessage: (text: string) => void;
  onClose: () => void;
}

class WebSocketReader extends AbstractMessageReader {
  constructor(private readonly socket: OpenWebSocket) {
    super();
  }

  listen(callback: DataCallback): Disposable {
    this.socket.onMessage = (text) => {
      let message: Message;
      try {
        message = JSON.parse(text) as Message;
      } catch (error) {
        this.fireError(error);
        return;
      }
      callback(message);
    };
    return { dispose: () => (this.socket.onMessage = () => undefined) };
  }

  ended(): void {
    this.fireClose();
  }
}

class WebSocketWriter extends AbstractMessageWriter implements MessageWriter {
  constructor(private readonly socket: OpenWebSocket) {
    super();
  }

  async write(message: Message): Promise<void> {
    this.socket.send(JSON.stringify(message));
  }

  end(): void {
    this.socket.close();
  }
}

/** The channel of an open WebSocket. */
export function webSocketChannel(socket: OpenWebSocket): Channel {
  const reader = new WebSocketReader(socket);
  const ended = new Promise<void>((resolve) => {
    socket.onClose = () => {
      reader.ended();
      resolve();
    };
  });
  return {
    reader,
    writer: new WebSocketWriter(socket),
    close: () => {
      socket.close();
      return ended;
    },
    cut: () => socket.terminate(),
  };
}
